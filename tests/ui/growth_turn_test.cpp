// Who draws when at a refresh of a growing run.
#include "ui/frame/growth_turn.h"

#include <QApplication>
#include <QTest>
#include <QWidget>

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class GrowthTurnTest : public ::testing::Test {
protected:
    struct Watched {
        QWidget view;
        int drawn = 0;
        std::unique_ptr<GrowthTurn> turn;
        Watched() {
            view.setGeometry(2000, 2000, 80, 60); // away from the pointer, which would give the view a turn of its own
            turn = std::make_unique<GrowthTurn>(view, [this] { ++drawn; });
        }
    };
    void add(int count) {
        for (int i = 0; i < count; ++i) {
            views.push_back(std::make_unique<Watched>());
            views.back()->view.show();
        }
        QCoreApplication::processEvents();
        if (QWidget* focus = QApplication::focusWidget()) focus->clearFocus();
    }
    /// @return the most that were drawn at one refresh
    int refresh(int times, bool ended = false) {
        int most = 0;
        for (int i = 0; i < times; ++i) {
            int before = 0, after = 0;
            for (const auto& each : views) before += each->drawn;
            for (const auto& each : views) each->turn->grew(ended);
            for (const auto& each : views) after += each->drawn;
            most = std::max(most, after - before);
        }
        return most;
    }
    std::vector<std::unique_ptr<Watched>> views;
};

TEST_F(GrowthTurnTest, OneOrTwoViewsFollowEveryRefresh) {
    add(2);
    refresh(10);
    for (const auto& each : views) EXPECT_EQ(each->drawn, 10);
}

TEST_F(GrowthTurnTest, ManyTakeTurnsAndNobodyIsForgotten) {
    add(8);
    EXPECT_LE(refresh(40), 2);
    for (const auto& each : views) EXPECT_EQ(each->drawn, 10);
    refresh(1, true); // the last one
    for (const auto& each : views) EXPECT_EQ(each->drawn, 11);
}

TEST_F(GrowthTurnTest, TheOneWithTheKeyboardFollowsEveryTime) {
    add(8);
    QWidget& view = views[5]->view;
    view.activateWindow();
    view.setFocusPolicy(Qt::StrongFocus);
    view.setFocus();
    ASSERT_TRUE(QTest::qWaitFor([&] { return view.hasFocus(); }));
    refresh(20);
    EXPECT_EQ(views[5]->drawn, 20);
    EXPECT_EQ(views[0]->drawn, 5);
}

TEST_F(GrowthTurnTest, NobodyDrawsOutOfSight) {
    add(3);
    views[1]->view.hide();
    refresh(6);
    EXPECT_EQ(views[1]->drawn, 0);
    EXPECT_EQ(views[0]->drawn, 6) << "two are left";
}

TEST_F(GrowthTurnTest, WhatWasSkippedIsDrawnWhenTheRunPauses) {
    add(8);
    refresh(1);
    EXPECT_TRUE(QTest::qWaitFor(
        [&] { return std::all_of(views.begin(), views.end(), [](const auto& each) { return each->drawn == 1; }); },
        30'000));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
