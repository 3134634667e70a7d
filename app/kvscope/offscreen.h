// Functions that the commands without a window share.
#pragma once

#include <QString>

#include <string>

namespace kvscope::app {

void nameApplication();
/// Chooses the platform that needs no display, whatever the environment says. Where Qt cannot start a thread that
/// draws, it would wait for that thread for ever: after this call the program ends with a sentence instead.
void useOffscreenPlatform();
QString absolute(const std::string& path);

} // namespace kvscope::app
