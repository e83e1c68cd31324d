"""Random real images: the control that decides, as a method of its own."""

from teddy.methods.method import Method, random_images

RANDOM = Method("real images drawn at random, with the pool's soft labels", random_images, None)
