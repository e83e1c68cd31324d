"""Random real images: the control that decides, as a method of its own."""

from teddy.methods.method import Method, real_images

RANDOM = Method("real images drawn at random, with the pool's soft labels", real_images, None)
