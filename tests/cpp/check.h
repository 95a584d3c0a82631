// What the C++ tests need of a framework: a named test is a function, a failed check prints itself and goes
// on, and the program's exit code says whether all held.
#pragma once
#include <cstdio>
#include <exception>
#include <source_location>
#include <string>
#include <string_view>

namespace pycoll::test {

inline int failures = 0;

inline void check(bool holds, std::string_view what,
                  std::source_location where = std::source_location::current()) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s:%u: failed: %.*s\n", where.file_name(), where.line(),
               static_cast<int>(what.size()), what.data());
}

// `Expected` must be thrown, with `part` in its text.
template <class Expected, class Call>
void check_throws(const Call& call, std::string_view part,
                  std::source_location where = std::source_location::current()) {
  try {
    call();
  } catch (const Expected& error) {
    check(std::string_view(error.what()).find(part) != std::string_view::npos,
          "message \"" + std::string(error.what()) + "\" lacks \"" + std::string(part) + "\"", where);
    return;
  } catch (const std::exception& error) {
    check(false, std::string("another error: ") + error.what(), where);
    return;
  }
  check(false, "nothing was thrown", where);
}

// For main: runs a test, and reports what escapes it.
template <class Test>
void run(const char* name, const Test& test) {
  const int before = failures;
  try {
    test();
  } catch (const std::exception& error) {
    check(false, std::string(name) + " threw: " + error.what());
  }
  std::printf("%s %s\n", failures == before ? "ok    " : "FAILED", name);
}

inline int result() {
  return failures == 0 ? 0 : 1;
}

}  // namespace pycoll::test
