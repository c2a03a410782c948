"""What numbers lie in the bytes of tensors, block by block: decoded, summed up, measured.

Pure, and the modules in it import numpy: they are imported when numbers are asked for.
"""
