"""SRe²L: one converged teacher's running statistics, its first layer's counted tenfold, and its classifier."""

from teddy.config import MethodSettings
from teddy.methods.method import Method, initial_images
from teddy.methods.teddy import weighted_objective
from teddy.synthesis.passes import Objective

FIRST_LAYER = 10.0


def sre2l_objective(settings: MethodSettings) -> Objective:
    """Global statistics only, whatever `statistics` says: the method has no others."""
    return weighted_objective(
        global_weight=settings.global_weight,
        class_wise_weight=0.0,
        every_layer=False,
        classifier_weight=settings.classifier_weight,
        first_layer=FIRST_LAYER,
    )


SRE2L = Method("statistics and classifier of one converged teacher (SRe²L)", initial_images, sre2l_objective)
