// Runs CUDA C++ on the CPU, for tests. Include it before the sources of the kernels.
//
// fiber.h switches between threads, machine.h runs blocks of them, language.h and tensor_core.h provide what
// the kernels call, and launcher.h what the tests call. What no kernel has to see is in emulator.cpp.
#pragma once

// first, because it includes headers of the standard library, where CUDA's keywords are ordinary names
#include "launcher.h"

#include "language.h"

#include "tensor_core.h"
