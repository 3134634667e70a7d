// The command palette and Ctrl+F: what a few letters find, by keyboard alone.
#include "tests/ui/window_fixture.h"

#include "ui/widgets/command_palette.h"
#include "ui/widgets/fuzzy_match.h"
#include "ui/widgets/session_form.h"
#include "ui/window/shortcut_list.h"

#include <QLineEdit>
#include <QListWidget>
#include <QSpinBox>

#include <algorithm>
#include <functional>
#include <random>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

/// The best score of all ways to place the letters, one by one.
std::optional<int> bruteForce(const QString& letters, const QString& name) {
    std::optional<int> best;
    const std::function<void(int, int, int, int)> place = [&](int letter, int from, int last, int score) {
        if (letter == letters.size()) {
            best = std::max(best.value_or(score), score);
            return;
        }
        for (int i = from; i < name.size(); ++i) {
            if (name[i].toLower() != letters[letter].toLower()) continue;
            const bool begins =
                i == 0 || !name[i - 1].isLetterOrNumber() || (name[i].isUpper() && name[i - 1].isLower());
            place(letter + 1, i + 1, i, score + 1 + (begins ? 4 : 0) + (letter > 0 && last == i - 1 ? 3 : 0));
        }
    };
    place(0, 0, -1, 0);
    return best;
}

TEST(FuzzyScore, IsTheBestOfAllWaysToPlaceTheLetters) {
    std::mt19937 random(7);
    const QString alphabet = QStringLiteral("abAB -");
    const auto text = [&](int most) {
        QString made;
        for (int i = int(random() % unsigned(most)) + 1; i > 0; --i) made += alphabet[int(random() % 6)];
        return made;
    };
    int found = 0;
    for (int i = 0; i < 3'000; ++i) {
        QString letters = text(4);
        const QString name = text(12), typed = letters;
        letters.remove(QLatin1Char(' '));
        if (letters.isEmpty()) continue;
        const auto wanted = bruteForce(letters, name);
        EXPECT_EQ(fuzzyScore(typed, name), wanted) << qPrintable(typed) << " in " << qPrintable(name);
        found += wanted ? 1 : 0;
    }
    EXPECT_GT(found, 500);
    EXPECT_GT(fuzzyScore("rl", "Reset Layout"), fuzzyScore("rl", "Serial"));
    EXPECT_FALSE(fuzzyScore("xyz", "Reset Layout"));
    EXPECT_EQ(fuzzyScore("  ", "anything"), 0);
}

class PaletteTest : public WindowTest {
protected:
    CommandPalette* open(MainWindow& window) {
        trigger(window, "palette");
        auto* palette = window.findChild<CommandPalette*>();
        EXPECT_TRUE(palette && palette->isVisible());
        return palette;
    }
    static void type(CommandPalette& palette, const QString& text) {
        QTest::keyClicks(palette.findChild<QLineEdit*>("paletteField"), text);
    }
    static void press(CommandPalette& palette, Qt::Key key) {
        QTest::keyClick(palette.findChild<QLineEdit*>("paletteField"), key);
    }
};

TEST_F(PaletteTest, FindsActionsViewsLayersAndSettings) {
    const auto window = windowOnTrace();
    CommandPalette* palette = open(*window);
    const QStringList all = palette->listed();
    for (const char* name : {"Run", "Timeline", "Layer 0", "Dark Theme", "Tune", "Reset Layout"})
        EXPECT_TRUE(all.contains(QLatin1String(name))) << name;
    type(*palette, "timeli");
    EXPECT_EQ(palette->listed().front(), "Timeline");
    EXPECT_TRUE(palette->listed().back().contains("timeli")) << "spans of this name";
    press(*palette, Qt::Key_Return);
    EXPECT_FALSE(palette->isVisible());
    EXPECT_TRUE(window->currentView()->findChild<QLineEdit*>("search")) << "the timeline is in front";
    open(*window);
    type(*palette, "layer 1");
    ASSERT_EQ(palette->listed().front(), "Layer 1");
    press(*palette, Qt::Key_Return);
    EXPECT_EQ(window->workspace().cursor().layer, 1);
    open(*window);
    type(*palette, "generate");
    press(*palette, Qt::Key_Return);
    auto* focused = QApplication::focusWidget();
    ASSERT_NE(focused, nullptr);
    EXPECT_TRUE(window->form().isAncestorOf(focused)) << "a setting leads to its field";
}

TEST_F(PaletteTest, WhatWasUsedComesFirstAndIsRemembered) {
    {
        const auto window = makeWindow(false);
        CommandPalette* palette = open(*window);
        type(*palette, "reset layout");
        press(*palette, Qt::Key_Return);
        open(*window);
        EXPECT_EQ(palette->listed().front(), "Reset Layout");
        press(*palette, Qt::Key_Escape);
        EXPECT_FALSE(palette->isVisible());
        window->saveSession();
    }
    const auto window = makeWindow(false);
    EXPECT_EQ(open(*window)->listed().front(), "Reset Layout");
}

TEST_F(PaletteTest, TheKeyboardAloneWalksAndWhatCannotBeDoneStays) {
    const auto window = makeWindow();
    CommandPalette* palette = open(*window);
    auto* list = palette->findChild<QListWidget*>("paletteList");
    press(*palette, Qt::Key_Up);
    EXPECT_EQ(list->currentRow(), list->count() - 1) << "around the end";
    press(*palette, Qt::Key_Down);
    press(*palette, Qt::Key_Down);
    EXPECT_EQ(list->currentRow(), 1);
    type(*palette, "export report");
    ASSERT_EQ(palette->listed().front(), "Export Report");
    press(*palette, Qt::Key_Return);
    EXPECT_TRUE(palette->isVisible()) << "no run is open, and nothing was done";
    type(*palette, "qqqqzzzz");
    EXPECT_EQ(list->count(), 1) << "only the search for spans";
    const auto shortcuts = shortcutsOf(*window);
    for (const char* keys : {"Ctrl+Shift+P", "Ctrl+F", "Ctrl+Alt+T"})
        EXPECT_TRUE(std::any_of(shortcuts.begin(), shortcuts.end(), [&](const ShortcutText& s) {
            return s.keys == QLatin1String(keys);
        })) << keys;
}

TEST_F(PaletteTest, FindLeadsToTheSearchOfTheViewOrToTheFilter) {
    const auto window = windowOnTrace();
    window->showView("timeline");
    settle(*window);
    trigger(*window, "find");
    ASSERT_NE(window->focusWidget(), nullptr);
    EXPECT_EQ(window->focusWidget()->objectName(), "search");
    window->showView("transfers");
    settle(*window);
    trigger(*window, "find");
    EXPECT_EQ(window->focusWidget()->objectName(), "filterText");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
