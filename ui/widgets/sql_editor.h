// A small editor for SQL: monospaced, coloured, completes names, marks where a statement went wrong.
#pragma once

#include "ui/frame/shortcuts.h"

#include <QPlainTextEdit>

class QCompleter;
class QStringListModel;
class QSyntaxHighlighter;

namespace kvscope::ui {

struct Theme;

class SqlEditor final : public QPlainTextEdit {
    Q_OBJECT
public:
    explicit SqlEditor(QWidget* parent = nullptr);
    /// Names of tables, columns and parameters that are offered besides the keywords.
    void setNames(const QStringList& names);
    QCompleter* completer() const { return completer_; }
    /// The selected text, else the statement the cursor is in; begin: where it begins in the whole text.
    QString statement(int* begin = nullptr) const;
    /// Underlines the word at this character; -1: nothing.
    void markError(int character);
    void applyTheme(const Theme& theme);
    static std::vector<ShortcutText> gestures(); // for the help

signals:
    void runRequested();

protected:
    void keyPressEvent(QKeyEvent* event) override;
    void changeEvent(QEvent* event) override;

private:
    QString wordBefore() const; // the name being typed, up to the cursor
    void offer(bool always);
    void complete(const QString& name);

    QCompleter* completer_;
    QStringListModel* names_;
    QSyntaxHighlighter* highlighter_;
};

/// Keywords of the SQL that reads, in capitals.
const QStringList& sqlKeywords();

} // namespace kvscope::ui
