// The main function of an emulator program: it reads launches from the standard
// input and writes the buffers that they leave to the standard output.
//
// A launch is a sequence of little-endian 64-bit words and bytes: length and
// name of the entry; blocks; threads; number of arguments; then for each its
// kind (0 a value, 1 a buffer, 2 a null pointer), its length and its bytes. The
// answer is the bytes of all buffers, in order. Buffers have exactly their
// length, so that a sanitizer sees every access behind it.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

namespace emu {

constexpr std::size_t kBufferAlign = 256;

struct Argument {
  std::uint64_t kind = 0, bytes = 0;
  char* data = nullptr;
};

struct Entry {
  const char* name;
  std::size_t parameters;
  void (*launch)(unsigned blocks, unsigned threads, const std::vector<Argument>& arguments);
};

extern const std::vector<Entry> entries;

[[noreturn]] inline void refuse(const std::string& why) {
  std::fprintf(stderr, "emulator: %s\n", why.c_str());
  std::exit(2);
}

// argument returns a kernel's parameter from what the launch gives for it.
template <class T>
T argument(const Argument& from) {
  if constexpr (std::is_pointer<T>::value) {
    return from.kind == 2 ? nullptr : reinterpret_cast<T>(from.data);
  } else {
    if (from.kind != 0 || from.bytes != sizeof(T)) {
      refuse("a parameter of " + std::to_string(sizeof(T)) + " bytes got " + std::to_string(from.bytes));
    }
    T value;
    std::memcpy(&value, from.data, sizeof value);
    return value;
  }
}

// Call is a kernel with its arguments.
template <auto kKernel, class... Parameters>
struct Call {
  std::tuple<Parameters...> arguments;

  static void thread(void* self) { std::apply(kKernel, static_cast<Call*>(self)->arguments); }

  template <std::size_t... kIndex>
  static void launch(unsigned blocks, unsigned threads, const std::vector<Argument>& from, std::index_sequence<kIndex...>) {
    Call call{{argument<Parameters>(from[kIndex])...}};
    emu::launch(blocks, threads, &Call::thread, &call);
  }
};

template <auto kKernel, class... Parameters>
Entry entryOf(const char* name, void (*)(Parameters...)) {
  return {name, sizeof...(Parameters), [](unsigned blocks, unsigned threads, const std::vector<Argument>& from) {
            Call<kKernel, Parameters...>::launch(blocks, threads, from, std::index_sequence_for<Parameters...>{});
          }};
}

#define EMU_ENTRY(kernel) emu::entryOf<&::kernel>(#kernel, &::kernel)

inline void readAll(void* to, std::size_t bytes) {
  if (bytes > 0 && std::fread(to, 1, bytes, stdin) != bytes) {
    refuse("the input ends inside a launch");
  }
}

inline std::uint64_t readWord() {
  std::uint64_t word = 0;
  readAll(&word, sizeof word);
  return word;
}

inline Argument readArgument() {
  Argument a;
  a.kind = readWord();
  a.bytes = readWord();
  void* data = nullptr;
  if (posix_memalign(&data, kBufferAlign, a.bytes) != 0) {
    refuse("no memory for " + std::to_string(a.bytes) + " bytes");
  }
  a.data = static_cast<char*>(data);
  readAll(a.data, a.bytes);
  return a;
}

inline const Entry& find(const std::string& name, std::size_t parameters) {
  for (const Entry& e : entries) {
    if (e.name == name && e.parameters == parameters) {
      return e;
    }
  }
  refuse("no entry " + name + " with " + std::to_string(parameters) + " parameters");
}

// serve does one launch; it returns whether there was one.
inline bool serve() {
  std::uint64_t length = 0;
  if (std::fread(&length, sizeof length, 1, stdin) != 1) {
    return false;
  }
  std::string name(length, ' ');
  readAll(&name[0], length);
  const auto blocks = static_cast<unsigned>(readWord()), threads = static_cast<unsigned>(readWord());
  std::vector<Argument> arguments(readWord());
  for (Argument& a : arguments) {
    a = readArgument();
  }
  find(name, arguments.size()).launch(blocks, threads, arguments);
  for (const Argument& a : arguments) {
    if (a.kind == 1 && a.bytes > 0) {
      std::fwrite(a.data, 1, a.bytes, stdout);
    }
    std::free(a.data);
  }
  std::fflush(stdout);
  return true;
}

}  // namespace emu

int main(int argc, char** argv) {
  emu::block.reversed = argc > 1 && std::strcmp(argv[1], "-reversed") == 0;
  while (emu::serve()) {
  }
  return 0;
}
