// Where a session of the session form runs: the choice, and below it which GPU was found.
#pragma once

#include "core/session/decode_session.h"

#include <QObject>
#include <QString>
#include <QVariant>

class QComboBox;
class QVBoxLayout;

namespace kvscope::ui {

class MutedLabel;

class SessionBackend final : public QObject {
    Q_OBJECT
public:
    /// Adds the choice to a section of the form.
    SessionBackend(QVBoxLayout* body, QObject* parent);

    Backend backend() const;
    QVariant value() const;
    void setValue(const QVariant& value);
    /// Why no session can run on the GPU; empty if one can, or while nobody knows.
    const QString& problem() const { return problem_; }

signals:
    void chosen(kvscope::Backend backend);
    void found(); // problem() may have changed

private:
    void choose();

    QComboBox* box_ = nullptr;
    MutedLabel* facts_ = nullptr;
    QString problem_;
    bool asked_ = false;
};

} // namespace kvscope::ui
