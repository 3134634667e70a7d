// Functions that the commands without a window share.
#pragma once

#include <QString>

#include <string>

namespace kvscope::app {

void nameApplication();
/// Pictures and reports need no display, whatever the environment offers.
void useOffscreenPlatform();
QString absolute(const std::string& path);

} // namespace kvscope::app
