// Sessions that wait in the queue as JSON text, so that a crash does not lose them.
#pragma once

#include "ui/session/session_controller.h"

#include <QByteArray>
#include <QString>

#include <utility>
#include <vector>

namespace kvscope::ui {

using NamedRequest = std::pair<QString, SessionRequest>; // what is run, and how it is called

/// All that the session form can ask for. Forks are left out: they belong to a run that is open.
QByteArray requestsJson(const std::vector<NamedRequest>& requests);
/// The requests in a text that requestsJson() has written; without those that this version cannot read.
/// Empty for any other text.
std::vector<NamedRequest> requestsOf(const QByteArray& json);

} // namespace kvscope::ui
