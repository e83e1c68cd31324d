"""The methods: one short file each, one line each in this table."""

from teddy.methods.method import Method
from teddy.methods.random import RANDOM
from teddy.methods.teddy import TEDDY

METHODS: dict[str, Method] = {
    "teddy": TEDDY,
    "random": RANDOM,
}
