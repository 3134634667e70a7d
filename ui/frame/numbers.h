// The numbers behind a picture as text. Written on a worker thread, because a heatmap has millions of them: whoever
// offers numbers copies what it needs to write them, and whoever takes them says when it is enough.
#pragma once

#include <QString>

#include <atomic>
#include <functional>
#include <string_view>

namespace kvscope::ui {

/// Takes CSV as it is made, on the thread that makes it.
class NumberSink {
public:
    virtual ~NumberSink() = default;
    /// Whole lines. @throws Error(Storage) where there is no room left, Error(Cancelled) when nobody wants more
    virtual void add(std::string_view lines) = 0;
    /// How far it is, 0..1.
    virtual void progress(double) {}
    /// Set when nobody wants more: for readers of a trace, which can be interrupted. Null: never.
    virtual const std::atomic<bool>* interrupt() const { return nullptr; }
};

/// Writes a header line and the numbers, on any thread. Null: there are none.
using NumberWriter = std::function<void(NumberSink&)>;

/// Those that are text already.
NumberWriter numbersOf(const QString& csv);
/// All at once: for what is small, and for tests. @throws Error as the writer does
QString textOf(const NumberWriter& numbers);

} // namespace kvscope::ui
