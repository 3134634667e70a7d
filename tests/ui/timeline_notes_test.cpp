// Notes that are taken back while others change the same trace, while a write waits, and after one has failed.
#include "tests/ui/timeline_fixture.h"

#include "ui/views/note_history.h"

#include <QLabel>
#include <QProxyStyle>
#include <QPushButton>
#include <QSignalSpy>
#include <QTableWidget>

#include <filesystem>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class TimelineNotes : public TimelineTest {
protected:
    using Texts = std::vector<std::string>;
    std::string trace() const { return workspace.current()->key.path.toStdString(); }
    Texts texts(const std::string& path) {
        const TraceReader reader(path);
        Texts all;
        for (const Note& note : readNotes(reader, 1)) all.push_back(note.text);
        return all;
    }
    Texts texts() { return texts(trace()); }
    void leave(const char* text) {
        answer(QString::fromLatin1(text));
        press(Qt::Key_M);
        ASSERT_TRUE(idle());
    }
    void undo() { emit panel().noteUndoRequested(); }
    bool says(const char* part) {
        for (const QLabel* label : panel().findChildren<QLabel*>())
            if (label->text().contains(QLatin1String(part))) return true;
        return false;
    }
};

TEST_F(TimelineNotes, UndoLeavesTheNotesOfOthersAlone) {
    openAndShow();
    leave("mine");
    const Note mine = timeline().data().notes.at(0);
    removeNote(trace(), mine); // by another program
    Note theirs;
    theirs.runId = 1;
    theirs.text = "theirs";
    ASSERT_EQ(addNote(trace(), theirs).id, mine.id);
    undo();
    ASSERT_TRUE(idle());
    EXPECT_EQ(texts(), Texts{"theirs"});
    EXPECT_TRUE(says("the note was changed elsewhere"));
    EXPECT_EQ(timeline().data().notes.at(0).text, "theirs") << "what is there now is shown";
    EXPECT_FALSE(child<QPushButton>("undoNote").isEnabled()) << "it can never be taken back";
}

TEST_F(TimelineNotes, UndoThatFailedIsNotLost) {
    openAndShow();
    leave("kept");
    const std::filesystem::path path = trace(), away = folder / "away.kvtrace";
    std::filesystem::rename(path, away);
    undo();
    ASSERT_TRUE(idle());
    EXPECT_TRUE(says("no longer there"));
    EXPECT_TRUE(child<QPushButton>("undoNote").isEnabled());
    std::filesystem::rename(away, path);
    undo();
    ASSERT_TRUE(idle());
    EXPECT_EQ(texts(), Texts{});
    EXPECT_FALSE(child<QPushButton>("undoNote").isEnabled());
}

TEST_F(TimelineNotes, AreTakenBackInOrderHoweverQuicklyItIsAsked) {
    openAndShow();
    leave("first");
    answer(QStringLiteral("second"));
    emit panel().noteEditRequested(timeline().data().notes.at(0).id);
    ASSERT_TRUE(idle());
    emit panel().noteRemoveRequested(timeline().data().notes.at(0).id);
    undo(); // undoes the removal, which has not been written yet
    undo();
    ASSERT_TRUE(idle());
    EXPECT_EQ(texts(), Texts{"first"});
    EXPECT_FALSE(says("changed elsewhere"));
    undo();
    undo(); // nothing is left
    ASSERT_TRUE(idle());
    EXPECT_EQ(texts(), Texts{});
}

TEST_F(TimelineNotes, GoToTheRunThatWasShownWhenTheyWereBegun) {
    open(recorded("other.kvtrace", {}));
    const RunKey other = workspace.current()->key;
    openAndShow();
    const std::string begunOn = trace();
    QTimer::singleShot(0, [&] {
        workspace.setCurrent(other); // as a link from another window does it
        auto* dialog = qobject_cast<QInputDialog*>(QApplication::activeModalWidget());
        ASSERT_TRUE(dialog);
        dialog->setTextValue(QStringLiteral("of the first"));
        dialog->accept();
    });
    press(Qt::Key_M);
    ASSERT_TRUE(idle());
    EXPECT_EQ(texts(begunOn), Texts{"of the first"});
    EXPECT_EQ(texts(other.path.toStdString()), Texts{});
    EXPECT_TRUE(timeline().data().notes.empty());
    EXPECT_FALSE(child<QPushButton>("undoNote").isEnabled());
}

/// As desktops are set where one click opens things.
class OneClickStyle final : public QProxyStyle {
public:
    int styleHint(StyleHint hint, const QStyleOption* option, const QWidget* widget,
                  QStyleHintReturn* returned) const override {
        return hint == SH_ItemView_ActivateItemOnSingleClick ? 1
                                                             : QProxyStyle::styleHint(hint, option, widget, returned);
    }
};

TEST_F(TimelineNotes, AClickZoomsNowhereAndADoubleClickOrEnterDoes) {
    openAndShow();
    leave("here");
    panel().setCurrentIndex(2);
    auto& table = child<QTableWidget>("notes");
    OneClickStyle style;
    table.setStyle(&style);
    QSignalSpy chosen(&panel(), &TimelinePanel::noteChosen), zoomed(&panel(), &TimelinePanel::noteFitRequested);
    const QPoint at = table.visualItemRect(table.item(0, 0)).center();
    QTest::mouseClick(table.viewport(), Qt::LeftButton, {}, at);
    EXPECT_EQ(chosen.size(), 1);
    EXPECT_TRUE(zoomed.isEmpty());
    QTest::mouseDClick(table.viewport(), Qt::LeftButton, {}, at);
    EXPECT_EQ(zoomed.size(), 1);
    QTest::keyClick(&table, Qt::Key_Return);
    EXPECT_EQ(zoomed.size(), 2);
    table.setStyle(nullptr);
}

TEST_F(TimelineNotes, OlderStepsFollowANoteThatCameBackUnderAnotherId) {
    const std::string path = recorded("run.kvtrace", {}).toStdString();
    NoteHistory history;
    Note note;
    note.runId = 1;
    note.startNs = 10;
    note.text = "first";
    const auto make = [&](const NoteStep& step) { history.push(makeStep(step, path)); };
    const auto undoLast = [&] { history.lastWasMade(makeStep(history.last(), path)); };
    make({NoteStep::Kind::Add, note, {}});
    const Note added = history.last().note;
    make({NoteStep::Kind::Change, added, "second"});
    make({NoteStep::Kind::Remove, history.last().note, {}});
    note.startNs = 20;
    note.text = "another's";
    ASSERT_EQ(addNote(path, note).id, added.id) << "its id is taken";
    undoLast();
    EXPECT_EQ(texts(path), (Texts{"second", "another's"}));
    undoLast();
    EXPECT_EQ(texts(path), (Texts{"first", "another's"}));
    undoLast();
    EXPECT_EQ(texts(path), Texts{"another's"});
    EXPECT_TRUE(history.empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
