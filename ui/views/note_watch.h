// Tells all timelines of the program when one of them has changed the notes of a trace.
#pragma once

#include <QObject>
#include <QString>

namespace kvscope::ui {

class NoteWatch final : public QObject {
    Q_OBJECT
public:
    static NoteWatch& instance() {
        static NoteWatch watch;
        return watch;
    }

signals:
    void changed(const QString& trace, const QObject* by);
};

} // namespace kvscope::ui
