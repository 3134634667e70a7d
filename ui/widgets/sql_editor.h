// A text editor for SQL. It has a font of fixed width, colours keywords, completes names and marks the place of an
// error.
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
    /// Sets the names of tables, columns and parameters that the editor completes besides the keywords.
    void setNames(const QStringList& names);
    QCompleter* completer() const { return completer_; }
    /// The selected text, or the statement at the cursor if nothing is selected. `begin` receives the index of its
    /// first character in the whole text.
    QString statement(int* begin = nullptr) const;
    /// Underlines the word at this character; -1: removes the underline.
    void markError(int character);
    void applyTheme(const Theme& theme);
    static std::vector<ShortcutText> gestures(); // for the list of shortcuts

signals:
    void runRequested();

protected:
    void keyPressEvent(QKeyEvent* event) override;
    void changeEvent(QEvent* event) override;

private:
    QString wordBefore() const; // the part of a name that ends at the cursor
    void offer(bool always);
    void complete(const QString& name);

    QCompleter* completer_;
    QStringListModel* names_;
    QSyntaxHighlighter* highlighter_;
};

/// The keywords of SQL that only reads, in capitals.
const QStringList& sqlKeywords();

} // namespace kvscope::ui
