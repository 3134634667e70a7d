#include "profiler/import/detail_store.h"

namespace kvscope {

DetailStore::Ref DetailStore::add(std::string_view text) {
    if (text.empty()) return {};
    const bool again = last_.length == text.size() && last_.at >= spilled_ &&
                       std::string_view(buffer_).substr(std::size_t(last_.at - spilled_), text.size()) == text;
    if (again) return last_;
    if (buffer_.size() + text.size() > atOnce_ && !buffer_.empty()) {
        if (!file_.isOpen()) file_.open(folder_);
        file_.append(buffer_.data(), buffer_.size());
        spilled_ += buffer_.size();
        buffer_.clear();
    }
    last_ = {spilled_ + buffer_.size(), std::uint32_t(text.size())};
    buffer_ += text;
    return last_;
}

std::string DetailStore::read(Ref ref) const {
    if (ref.at >= spilled_) return buffer_.substr(std::size_t(ref.at - spilled_), ref.length);
    std::string text(ref.length, '\0');
    file_.read(text.data(), text.size(), std::int64_t(ref.at));
    return text;
}

} // namespace kvscope
