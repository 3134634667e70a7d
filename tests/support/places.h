// Where the checkout and the programs under test lie. Only places.cpp knows the folders, so that the compiler cache
// serves the objects of all other tests to every checkout.
#pragma once

#include <string>

namespace kvscope::test {

// A file or folder of the checkout by its path from the top folder; "" is the top folder itself.
std::string source(const std::string& path);

extern const char* const kCommandLine; // the kvscope-cli of this build
extern const char* const kDesktop;     // the desktop program of this build; empty in a build without it

} // namespace kvscope::test
