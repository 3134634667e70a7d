// Lines of token chips: pure geometry of the token strip, in pixels. Appending is O(1), finding is O(log n).
#pragma once

#include <vector>

namespace kvscope::ui {

class TokenFlow {
public:
    /// Starts again with lines of `width`.
    void reset(double width);
    /// A chip `gap` to the right of the one before; it goes to the next line when it does not fit.
    void append(double chipWidth, double gap);

    int count() const { return int(left_.size()); }
    int lines() const { return int(firstOfLine_.size()); }
    int firstOfLine(int line) const;
    int endOfLine(int line) const; // one past the last
    int lineOf(int token) const;
    double left(int token) const { return left_[std::size_t(token)]; }
    double width(int token) const { return width_[std::size_t(token)]; }
    /// The token of a line nearest to x; -1 when the line does not exist.
    int at(int line, double x) const;
    /// The token `lines` further down (or up) nearest to the same x; stays on the first or last line.
    int moved(int token, int lines) const;

private:
    double lineWidth_ = 0;
    std::vector<float> left_, width_;
    std::vector<int> firstOfLine_;
};

} // namespace kvscope::ui
