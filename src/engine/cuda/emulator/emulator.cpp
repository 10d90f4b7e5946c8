// What is compiled once for all kernels.
#include "machine.cpp"

#include "launcher.cpp"
#ifdef EMULATOR_COUNTS
#include "count.cpp"
#endif
