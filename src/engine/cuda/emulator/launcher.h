// Calls kernels by name: determines the types of a kernel's parameters, takes them from a list of tagged
// values, and runs the kernel on the machine.
#pragma once

#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include "count.h"
#include "machine.h"

namespace emulator {

// Argument and Request have the layout of the structs in mod.rs beside this file.
struct Argument {
    enum Kind : uint32_t { pointer, int32, int64, float32, float64 } kind;
    uint64_t bits;
};

struct Request {
    const char* kernel;
    const Argument* arguments;
    uint64_t argument_count;
    uint64_t seed;
    uint32_t grid[3];
    uint32_t threads;
    uint32_t dynamic_bytes;
    Order order;
    const Watched* watched;
    uint64_t watched_count;
    Touched* touched;
};

inline const char* kind_name(Argument::Kind kind) {
    const char* names[] = {"a pointer", "an int", "a long long", "a float", "a double"};
    return kind < 5 ? names[kind] : "unknown";
}

template <class T>
struct Parameter;
template <class T>
struct Parameter<T*> {
    static constexpr Argument::Kind kind = Argument::pointer;
};
template <>
struct Parameter<int> {
    static constexpr Argument::Kind kind = Argument::int32;
};
template <>
struct Parameter<long long> {
    static constexpr Argument::Kind kind = Argument::int64;
};
template <>
struct Parameter<float> {
    static constexpr Argument::Kind kind = Argument::float32;
};
template <>
struct Parameter<double> {
    static constexpr Argument::Kind kind = Argument::float64;
};

template <class T>
T unpack(const Request& request, size_t place) {
    const Argument& argument = request.arguments[place];
    if (argument.kind != Parameter<T>::kind) {
        machine.fail("argument %zu is %s, the parameter %s", place, kind_name(argument.kind),
                     kind_name(Parameter<T>::kind));
    }
    T value;
    memcpy(&value, &argument.bits, sizeof value);
    return value;
}

template <auto kernel>
struct Call;

template <class... P, void (*kernel)(P...)>
struct Call<kernel> {
    static bool run(const Request& request) {
        try {
            if (request.argument_count != sizeof...(P)) {
                machine.fail("%zu arguments given, it has %zu parameters", size_t(request.argument_count),
                             sizeof...(P));
            }
            return run(request, std::index_sequence_for<P...>());
        } catch (const Failure&) {
            return false;
        }
    }

  private:
    template <size_t... PLACES>
    static bool run(const Request& request, std::index_sequence<PLACES...>) {
        std::tuple<P...> values{unpack<P>(request, PLACES)...};
        auto body = [](void* values) { std::apply(kernel, *static_cast<std::tuple<P...>*>(values)); };
        dim3 grid{request.grid[0], request.grid[1], request.grid[2]};
        return machine.run(grid, request.threads, request.dynamic_bytes, request.order, request.seed, body, &values);
    }
};

struct Kernel {
    const char* name;
    bool (*run)(const Request&);
};

// All kernels; defined by the translation unit that includes their sources.
extern const Kernel kernels[];
extern const size_t kernel_count;

}  // namespace emulator
