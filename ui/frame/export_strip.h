// An export under way, at the lower edge of what it exports: how far it is, a button to stop it, and how it ended.
#pragma once

#include "ui/frame/numbers_export.h"

#include <QFrame>

class QLabel;
class QProgressBar;
class QPushButton;
class QTimer;

namespace kvscope::ui {

class ExportStrip final : public QFrame {
    Q_OBJECT
public:
    /// Lies over `parent` and follows its size. Quick exports show it only to say that they are done.
    explicit ExportStrip(QWidget* parent);
    /// Without numbers it says so.
    void toFile(NumberWriter numbers, const QString& path);
    void toClipboard(NumberWriter numbers);

signals:
    void finished(const QString& path, const QString& problem, bool cancelled);

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    bool begin(const NumberWriter& numbers, const QString& path);
    void told(double share, qint64 bytes);
    void ended(const QString& path, const QString& problem, bool cancelled);
    void say(const QString& text, bool running);
    void place();

    NumbersExport export_;
    QString what_; // being written
    QLabel* text_;
    QProgressBar* bar_;
    QPushButton* button_;
    QTimer *patience_, *leave_;
};

} // namespace kvscope::ui
