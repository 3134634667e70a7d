// What the session form holds as the base of a sweep: which settings can vary, the runs that their values make, how the
// runs are called, and which of them cannot run.
#pragma once

#include "base/error.h"
#include "core/session/sweep.h"
#include "ui/session/session_controller.h"

#include <QString>
#include <QStringList>

#include <cstddef>
#include <memory>
#include <vector>

namespace kvscope::ui {

inline constexpr std::size_t kMostSweptRuns = 500; // of one sweep; a person reads the list of them

struct SweepBase {
    SessionRequest form; // as the session form holds it
    std::shared_ptr<const Model> model;
    int promptTokens = 0; // of the longest prompt
};

/// A setting that can vary.
struct SweepField {
    std::string key;     // as SweepAxis has it
    QString title;       // as the session form writes it
    QString help;        // a sentence
    QString range;       // "1 to 65,536 blocks"; empty: the choices say it
    QString unit;        // "blocks", "tokens", ...; empty: none
    QStringList choices; // every value it can have; empty: too many to name
    QString now;         // its value in the form; empty: the form has none, or another method's
};

struct SweptRun {
    QString name; // "nosa, 32 blocks"
    SessionRequest request;
    QString problem; // why it cannot run, one sentence; empty: it can
};

/// The settings that some run of a sweep over these methods has: what every session has, then the methods' parameters.
std::vector<SweepField> sweepFields(const SweepBase& base, const QStringList& methods);

/// The runs of a sweep. Everything that no axis names is as in the form; what was changed there for the form's method
/// goes to all methods that have the parameter.
/// @throws Error(BadInput) as sweepPoints(), for more than kMostSweptRuns, and for a length of the prompt or a number
/// of sequences that is none
std::vector<SweptRun> planSweep(const SweepBase& base, const std::vector<SweepAxis>& axes);

/// How a single run of the queue is called: its method and what was changed of the method's own settings.
QString queuedName(const SessionRequest& request, const Model& model);

/// What is wrong with a sweep, in one sentence and in the words of the form: "Link has no effect ...".
QString inWordsOfForm(const Error& error, const std::vector<SweepField>& fields);

} // namespace kvscope::ui
