#include "core/http/answer_text.h"

#include <algorithm>
#include <utility>

namespace kvscope::http {

AnswerText::AnswerText(const Tokenizer& tokenizer, std::vector<std::string> stop)
    : stream_(tokenizer), stop_(std::move(stop)) {}

std::string AnswerText::push(std::int32_t token) {
    if (stopped_) return {};
    held_ += stream_.push(token);
    return release(false);
}

std::string AnswerText::finish() {
    if (stopped_) return {};
    held_ += stream_.finish();
    return release(true);
}

std::string AnswerText::release(bool last) {
    std::size_t found = std::string::npos;
    for (const std::string& stop : stop_) found = std::min(found, held_.find(stop));
    if (found != std::string::npos) {
        stopped_ = true;
        held_.resize(found);
        return std::exchange(held_, {});
    }
    std::size_t keep = 0; // length of the longest end of held_ with which a stop text begins
    if (!last)
        for (const std::string& stop : stop_) {
            std::size_t length = std::min(stop.size() - 1, held_.size());
            while (length > keep && held_.compare(held_.size() - length, length, stop, 0, length) != 0) --length;
            keep = std::max(keep, length);
        }
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, out.size());
    return out;
}

} // namespace kvscope::http
