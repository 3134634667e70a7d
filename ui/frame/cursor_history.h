// Where the person has looked: back and forward through the shared cursor's places, as a browser goes through pages.
#pragma once

#include "ui/frame/workspace.h"

#include <QElapsedTimer>
#include <QObject>

#include <vector>

namespace kvscope::ui {

/// Moves that follow each other closely (a drag, a held key) are one place, and following a live run is none.
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
    /// By so many places: negative is back. Stops at either end.
    void go(int by);

    /// Oldest first; `at` is where the cursor is now, -1 before any run was open.
    const std::vector<Place>& places() const { return places_; }
    int at() const { return at_; }
    /// What sets the place apart from `from`: "step 120, layer 5, block 7"; the run where it is another one.
    QString describe(const Place& place, const Place& from) const;

    /// Milliseconds of rest after which the next move begins a new place.
    void setPause(int milliseconds) { pause_ = milliseconds; }

signals:
    void changed();

private:
    void record();
    void forgetClosed();

    Workspace& workspace_;
    std::vector<Place> places_;
    int at_ = -1;
    bool placedByPerson_ = false; // the newest place: otherwise a live run or the opening of a file chose it
    bool going_ = false;
    int pause_ = 500;
    QElapsedTimer sinceMove_;
};

} // namespace kvscope::ui
