// Shows an export of numbers at the lower edge of the widget whose numbers are exported: how far it is, a button to
// stop it, and how it ended.
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
    /// Lies over `parent` and follows its size. If an export ends within 0.3 s, only its end is shown.
    explicit ExportStrip(QWidget* parent);
    /// Writes the numbers to a file. If `numbers` is null, the strip says that there are none.
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
    QString what_; // the name of what is being written, for the text of the strip
    QLabel* text_;
    QProgressBar* bar_;
    QPushButton* button_;
    QTimer *patience_, *leave_;
};

} // namespace kvscope::ui
