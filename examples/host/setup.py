"""A wheel with the compiled part of refopt.torch: pip wheel --no-build-isolation --no-deps ."""

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

from refopt.torch import host

extension = CppExtension(host.extension_name(), [str(host.SOURCE)], extra_compile_args=["-O2"])
commands = {"build_ext": BuildExtension}
setup(name="refopt-host", version="1", ext_modules=[extension], cmdclass=commands)
