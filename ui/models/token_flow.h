// Arranges token chips in lines: the geometry of the token strip, in pixels and without widgets. Appending a chip takes
// O(1) and finding the line of a token O(log n).
#pragma once

#include "base/indexed.h"

#include <vector>

namespace kvscope::ui {

class TokenFlow {
public:
    /// Removes all chips and starts again with lines of this width.
    void reset(double width);
    /// Adds a chip at the distance `gap` to the right of the last one, or on a new line if it does not fit.
    void append(double chipWidth, double gap);

    int count() const { return int(left_.size()); }
    int lines() const { return int(firstOfLine_.size()); }
    int firstOfLine(int line) const;
    int endOfLine(int line) const; // one after the line's last token
    int lineOf(int token) const;
    double left(int token) const { return left_[std::size_t(token)]; }
    double width(int token) const { return width_[std::size_t(token)]; }
    /// The token of a line that is nearest to x; -1 if there is no such line.
    int at(int line, double x) const;
    /// The token nearest to the same x that lies `lines` lines further down, or further up if negative. It moves at
    /// most to the first or the last line.
    int moved(int token, int lines) const;

private:
    double lineWidth_ = 0;
    std::vector<float> left_, width_;
    Numbered<int> firstOfLine_;
};

} // namespace kvscope::ui
