// Functions that the commands without a window share.
#pragma once

#include <QString>

#include <string>

namespace kvscope::app {

void nameApplication();
/// Pictures and reports need no display, whatever the environment offers. Where Qt cannot start a thread that draws, it
/// would wait for it for ever: from now on that ends the program with a sentence.
void useOffscreenPlatform();
QString absolute(const std::string& path);

} // namespace kvscope::app
