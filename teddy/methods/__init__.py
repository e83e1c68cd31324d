"""The methods: one short file each, one line each in this table."""

from teddy.methods.method import Method
from teddy.methods.random import RANDOM
from teddy.methods.sre2l import SRE2L
from teddy.methods.teddy import TEDDY

METHODS: dict[str, Method] = {
    "teddy": TEDDY,
    "sre2l": SRE2L,
    "random": RANDOM,
}
