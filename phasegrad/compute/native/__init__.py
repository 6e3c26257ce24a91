"""Small networks as machine code: a traced graph of tensor operations written as one C function.

    graph.py      where each value of the graph lies: buffers, views, broadcasting
    emit.py       the C statements of each operation
    pointwise.py  of these, the ones on each element by itself, and the types of numbers they are right for
    build.py      the system's compiler
    cache.py      the folder of what it built
    loading.py    bytes of a binary as a loaded library
    program.py    compiled programs: acting, and whole epochs of minibatches
    convolutions.py   the convolutions of an image encoder, an image at a time; convolution_source.py writes them

What the compiler is for: a minibatch of a 64-64 network is a hundred kernels of a microsecond each, and every way of
calling them one by one costs more than they do. Where there is no compiler, or a graph holds an operation that is not
known here, the caller does without.
"""

from phasegrad.compute.native.build import compiler
from phasegrad.compute.native.convolutions import compile_convolutions
from phasegrad.compute.native.program import EpochProgram, Program, Unsupported

__all__ = ["EpochProgram", "Program", "Unsupported", "compile_convolutions", "compiler"]
