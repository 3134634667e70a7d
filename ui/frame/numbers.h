// Writes the numbers behind a picture as text. The numbers are written on a worker thread, because a heatmap has
// millions of them. The function that writes them therefore owns copies of all that it needs, and the sink that takes
// them can end the writing.
#pragma once

#include <QString>

#include <atomic>
#include <functional>
#include <string_view>

namespace kvscope::ui {

/// Takes CSV text as it is made, on the thread that makes it.
class NumberSink {
public:
    virtual ~NumberSink() = default;
    /// Takes whole lines. @throws Error(Storage) if there is no room left, Error(Cancelled) if no more lines are wanted
    virtual void add(std::string_view lines) = 0;
    /// Takes the share of the numbers that is written, 0..1.
    virtual void progress(double) {}
    /// A flag that is set when no more lines are wanted. The writer can pass it to a reader of a trace, which then
    /// interrupts its read. Null: there is no flag.
    virtual const std::atomic<bool>* interrupt() const { return nullptr; }
};

/// A function that writes a header line and the numbers, on any thread. Null: there are no numbers.
using NumberWriter = std::function<void(NumberSink&)>;

/// A writer of numbers that are CSV already. Null if `csv` is empty.
NumberWriter numbersOf(const QString& csv);
/// All numbers of a writer as one text, for small tables and for tests. @throws Error as the writer does
QString textOf(const NumberWriter& numbers);

} // namespace kvscope::ui
