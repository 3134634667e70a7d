// Records the places of the shared cursor and goes back and forward through them, as a browser goes through pages.
#pragma once

#include "base/indexed.h"
#include "ui/frame/workspace.h"

#include <QElapsedTimer>
#include <QObject>

#include <vector>

namespace kvscope::ui {

/// Moves of the user that follow each other closely, e.g. of a drag or a held key, are recorded as one place. Moves
/// that follow a live run are one place too, which each further move replaces.
class CursorHistory final : public QObject {
    Q_OBJECT
public:
    struct Place {
        RunKey run;
        Cursor cursor;
        bool operator==(const Place&) const = default;
    };

    explicit CursorHistory(Workspace& workspace, QObject* parent = nullptr);

    bool canGoBack() const { return at_ > 0; }
    bool canGoForward() const { return at_ + 1 < int(places_.size()); }
    void back() { go(-1); }
    void forward() { go(1); }
    /// Goes forward by `by` places, or back if negative, and stops at either end.
    void go(int by);

    /// The places, oldest first. `at` is the index of the place at which the cursor is; -1 before the first run was
    /// open.
    const std::vector<Place>& places() const { return places_; }
    int at() const { return at_; }
    /// A text that says how the place differs from `from`: "step 120, layer 5, block 7", with the name of the run if
    /// the runs differ.
    QString describe(const Place& place, const Place& from) const;

    /// Sets the pause after which the next move begins a new place.
    void setPause(int milliseconds) { pause_ = milliseconds; }

signals:
    void changed();

private:
    void record();
    void forgetClosed();

    Workspace& workspace_;
    Numbered<Place> places_;
    int at_ = -1;
    /// Whether the user moved the cursor to the newest place. Otherwise a live run or the opening of a file moved it.
    bool placedByPerson_ = false;
    bool going_ = false;
    int pause_ = 500;
    QElapsedTimer sinceMove_;
};

} // namespace kvscope::ui
