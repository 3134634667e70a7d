// What the tokenizers' normalizers know of characters.
#include "core/model/tokenizer/unicode.h"

#include <gtest/gtest.h>

namespace kvscope::tokenizing {
namespace KVSCOPE_TEST_FILE {

/// As StripAccents of the tokenizers library, which drops every mark: non-spacing, spacing and enclosing ones.
TEST(Unicode, WithoutMarksDropsMarksOfEveryKind) {
    if (!hasUnicodeTables()) GTEST_SKIP() << "built without Unicode's tables";
    EXPECT_EQ(withoutMarks("e\u0301a\u0308"), "ea");                                   // Mn: acute accent, diaeresis
    EXPECT_EQ(withoutMarks("\u0915\u093E\u0916\u0903"), "\u0915\u0916");               // Mc: a vowel sign, visarga
    EXPECT_EQ(withoutMarks("1\u20DD2\u20E3"), "12");                                   // Me: enclosing circle, keycap
    EXPECT_EQ(withoutMarks("\u00E9 _-\u4E2D\U0001F600"), "\u00E9 _-\u4E2D\U0001F600"); // composed: nothing to drop
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::tokenizing
