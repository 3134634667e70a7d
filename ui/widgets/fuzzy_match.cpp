#include "ui/widgets/fuzzy_match.h"

#include <algorithm>
#include <vector>

namespace kvscope::ui {

std::optional<int> fuzzyScore(const QString& typed, const QString& name) {
    constexpr int kLetter = 1, kWord = 4, kRun = 3, kNever = -1'000'000;
    QString letters;
    for (const QChar letter : typed)
        if (!letter.isSpace()) letters += letter.toCaseFolded();
    if (letters.isEmpty()) return 0;
    const auto width = std::size_t(name.size());
    // [place in name] the best score of the letters so far, the last of which stands there.
    std::vector<int> before(width, kNever), now(width, kNever);
    for (qsizetype i = 0; i < letters.size(); ++i) {
        int best = i == 0 ? 0 : kNever; // of the letters before, anywhere to the left
        for (std::size_t place = 0; place < width; ++place) {
            const QChar here = name[qsizetype(place)];
            const bool begins = place == 0 || !name[qsizetype(place) - 1].isLetterOrNumber() ||
                                (here.isUpper() && name[qsizetype(place) - 1].isLower());
            const int joined = i > 0 && place > 0 ? before[place - 1] + kRun : kNever;
            now[place] = kNever;
            if (here.toCaseFolded() == letters[i]) now[place] = std::max(best, joined) + kLetter + (begins ? kWord : 0);
            if (i > 0) best = std::max(best, before[place]);
        }
        before.swap(now);
    }
    const int score = width == 0 ? kNever : *std::max_element(before.begin(), before.end());
    if (score < 0) return std::nullopt;
    return score;
}

} // namespace kvscope::ui
