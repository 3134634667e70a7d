#include "ui/models/token_flow.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

void TokenFlow::reset(double width) {
    lineWidth_ = width;
    left_.clear();
    width_.clear();
    firstOfLine_.clear();
}

void TokenFlow::append(double chipWidth, double gap) {
    double left = 0;
    if (!left_.empty()) left = double(left_.back()) + double(width_.back()) + gap;
    if (left_.empty() || left + chipWidth > lineWidth_) {
        firstOfLine_.push_back(count());
        left = 0;
    }
    left_.push_back(float(left));
    width_.push_back(float(chipWidth));
}

int TokenFlow::firstOfLine(int line) const { return firstOfLine_[line]; }

int TokenFlow::endOfLine(int line) const { return line + 1 < lines() ? firstOfLine_[line + 1] : count(); }

int TokenFlow::lineOf(int token) const {
    return int(std::upper_bound(firstOfLine_.begin(), firstOfLine_.end(), token) - firstOfLine_.begin()) - 1;
}

int TokenFlow::at(int line, double x) const {
    if (line < 0 || line >= lines()) return -1;
    int best = -1;
    double distance = 0;
    for (int token = firstOfLine(line); token < endOfLine(line); ++token) {
        const double away = std::max({left(token) - x, x - left(token) - width(token), 0.0});
        if (best < 0 || away < distance) best = token, distance = away;
    }
    return best;
}

int TokenFlow::moved(int token, int by) const {
    if (token < 0 || token >= count()) return token;
    const int line = std::clamp(lineOf(token) + by, 0, lines() - 1);
    return at(line, left(token) + width(token) / 2);
}

} // namespace kvscope::ui
