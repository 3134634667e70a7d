#include "ui/widgets/sql_editor.h"

#include "profiler/sql/sql_session.h"
#include "ui/look/theme.h"

#include <QAbstractItemView>
#include <QCompleter>
#include <QFontDatabase>
#include <QKeyEvent>
#include <QRegularExpression>
#include <QScrollBar>
#include <QStringListModel>
#include <QSyntaxHighlighter>

#include <algorithm>

namespace kvscope::ui {

namespace {

constexpr int kOfferAfter = 2; // characters of a name after which completions are offered

bool isNamePart(QChar c) { return c.isLetterOrNumber() || c == QLatin1Char('_') || c == QLatin1Char(':'); }

class Highlighter final : public QSyntaxHighlighter {
public:
    explicit Highlighter(QTextDocument* document) : QSyntaxHighlighter(document) {
        keywords_ = QRegularExpression(QStringLiteral("\\b(?:%1)\\b").arg(sqlKeywords().join(QLatin1Char('|'))),
                                       QRegularExpression::CaseInsensitiveOption);
    }
    void setTheme(const Theme& theme) {
        keyword_.setForeground(theme.accent);
        keyword_.setFontWeight(QFont::DemiBold);
        literal_.setForeground(theme.origin[2]);
        number_.setForeground(theme.origin[1]);
        comment_.setForeground(theme.mutedText);
        comment_.setFontItalic(true);
        parameter_.setForeground(theme.origin[3]);
        rehighlight();
    }

protected:
    void highlightBlock(const QString& text) override {
        const auto colour = [&](const QRegularExpression& pattern, const QTextCharFormat& format) {
            for (auto matches = pattern.globalMatch(text); matches.hasNext();) {
                const auto match = matches.next();
                setFormat(int(match.capturedStart()), int(match.capturedLength()), format);
            }
        };
        static const QRegularExpression numbers(QStringLiteral("\\b\\d+(?:\\.\\d+)?(?:e[+-]?\\d+)?\\b"));
        static const QRegularExpression parameters(QStringLiteral(":[a-z_]+"));
        colour(numbers, number_);
        colour(parameters, parameter_);
        colour(keywords_, keyword_);
        // Strings and comments are coloured last, over the keywords in them. Block state 1: the line ends inside a
        // comment that goes on in the next line.
        int at = 0;
        setCurrentBlockState(0);
        if (previousBlockState() == 1) at = closeComment(text, 0);
        while (at >= 0 && at < text.size()) {
            if (text[at] == QLatin1Char('\'')) {
                const auto end = text.indexOf(QLatin1Char('\''), at + 1);
                const int stop = end < 0 ? int(text.size()) : int(end) + 1;
                setFormat(at, stop - at, literal_);
                at = stop;
            } else if (QStringView(text).mid(at, 2) == QLatin1String("--")) {
                setFormat(at, int(text.size()) - at, comment_);
                return;
            } else if (QStringView(text).mid(at, 2) == QLatin1String("/*")) {
                at = closeComment(text, at);
            } else {
                ++at;
            }
        }
    }

private:
    int closeComment(const QString& text, int from) {
        const auto end = text.indexOf(QLatin1String("*/"), from);
        const int stop = end < 0 ? int(text.size()) : int(end) + 2;
        setFormat(from, stop - from, comment_);
        if (end < 0) setCurrentBlockState(1);
        return stop;
    }
    QRegularExpression keywords_;
    QTextCharFormat keyword_, literal_, number_, comment_, parameter_;
};

} // namespace

const QStringList& sqlKeywords() {
    static const QStringList words =
        QStringLiteral(
            "ALL AND AS ASC AVG BETWEEN BY CASE CAST COALESCE COUNT CROSS DESC DISTINCT ELSE END EXCEPT EXISTS "
            "EXPLAIN FROM FULL GROUP GROUP_CONCAT HAVING IFNULL IN INNER INTERSECT IS JOIN LAG LEAD LEFT LIKE "
            "LIMIT MAX MIN NOT NTILE NULL NULLIF OFFSET ON OR ORDER OVER PARTITION PLAN PRAGMA QUERY RANK "
            "RECURSIVE RIGHT ROUND ROWS ROW_NUMBER SELECT SUM THEN TOTAL UNION USING VALUES WHEN WHERE WINDOW "
            "WITH")
            .split(QLatin1Char(' '));
    return words;
}

SqlEditor::SqlEditor(QWidget* parent)
    : QPlainTextEdit(parent), completer_(new QCompleter(this)), names_(new QStringListModel(this)),
      highlighter_(new Highlighter(document())) {
    setObjectName(QStringLiteral("sqlEditor"));
    setAccessibleName(tr("SQL query"));
    setFont(QFontDatabase::systemFont(QFontDatabase::FixedFont));
    setLineWrapMode(QPlainTextEdit::NoWrap);
    setTabStopDistance(fontMetrics().horizontalAdvance(QLatin1Char(' ')) * 4);
    setPlaceholderText(tr("SELECT … — Ctrl+Return runs the statement at the cursor, Ctrl+Space completes names"));
    names_->setStringList(sqlKeywords());
    completer_->setModel(names_);
    completer_->setWidget(this);
    completer_->setCaseSensitivity(Qt::CaseInsensitive);
    completer_->setModelSorting(QCompleter::CaseInsensitivelySortedModel);
    completer_->popup()->setFont(font());
    completer_->popup()->setAccessibleName(tr("Names that fit"));
    connect(completer_, qOverload<const QString&>(&QCompleter::activated), this, &SqlEditor::complete);
    connect(this, &QPlainTextEdit::textChanged, this, [this] { markError(-1); });
    applyTheme(Theme::current());
}

void SqlEditor::setNames(const QStringList& names) {
    QStringList all = names + sqlKeywords();
    all.removeDuplicates();
    all.sort(Qt::CaseInsensitive);
    names_->setStringList(all);
}

QString SqlEditor::statement(int* begin) const {
    const QTextCursor cursor = textCursor();
    if (cursor.hasSelection()) {
        if (begin) *begin = cursor.selectionStart();
        return cursor.selectedText().replace(QChar::ParagraphSeparator, QLatin1Char('\n'));
    }
    const QString text = toPlainText();
    const std::string bytes = text.toStdString();
    const auto [first, length] = statementAt(bytes, std::size_t(text.left(cursor.position()).toUtf8().size()));
    if (begin) *begin = int(QString::fromStdString(bytes.substr(0, first)).size());
    return QString::fromStdString(bytes.substr(first, length));
}

void SqlEditor::markError(int character) {
    QList<QTextEdit::ExtraSelection> marks;
    if (character >= 0 && !document()->isEmpty()) {
        QTextEdit::ExtraSelection mark;
        mark.cursor = QTextCursor(document());
        mark.cursor.setPosition(std::min(character, document()->characterCount() - 1));
        mark.cursor.movePosition(QTextCursor::EndOfWord, QTextCursor::KeepAnchor);
        if (!mark.cursor.hasSelection()) mark.cursor.movePosition(QTextCursor::NextCharacter, QTextCursor::KeepAnchor);
        mark.format.setUnderlineStyle(QTextCharFormat::WaveUnderline);
        mark.format.setUnderlineColor(Theme::current().danger);
        marks << mark;
    }
    setExtraSelections(marks);
}

void SqlEditor::applyTheme(const Theme& theme) {
    static_cast<Highlighter*>(highlighter_)->setTheme(theme);
    setExtraSelections({});
}

void SqlEditor::changeEvent(QEvent* event) {
    QPlainTextEdit::changeEvent(event);
    // The style sheet sets the program's font in every widget, so the editor sets the font of fixed width again.
    if (event->type() == QEvent::StyleChange || event->type() == QEvent::ApplicationFontChange) {
        QFont fixed = QFontDatabase::systemFont(QFontDatabase::FixedFont);
        fixed.setPointSizeF(font().pointSizeF());
        if (font() != fixed) setFont(fixed);
    }
}

QString SqlEditor::wordBefore() const {
    const QTextCursor cursor = textCursor();
    const QString line = cursor.block().text().left(cursor.positionInBlock());
    auto begin = line.size();
    while (begin > 0 && isNamePart(line[begin - 1])) --begin;
    return line.mid(begin);
}

std::vector<ShortcutText> SqlEditor::gestures() {
    const QString sql = tr("SQL");
    return {
        {sql, tr("Run the selected text, or the statement at the cursor"), tr("Ctrl+Return")},
        {sql, tr("Complete a name"), tr("Ctrl+Space")},
    };
}

void SqlEditor::keyPressEvent(QKeyEvent* event) {
    const bool enter = event->key() == Qt::Key_Return || event->key() == Qt::Key_Enter;
    if (completer_->popup()->isVisible() &&
        (enter || event->key() == Qt::Key_Tab || event->key() == Qt::Key_Escape || event->key() == Qt::Key_Backtab) &&
        !(event->modifiers() & Qt::ControlModifier)) {
        event->ignore(); // the list of completions handles these keys
        return;
    }
    if (enter && event->modifiers() & Qt::ControlModifier) {
        completer_->popup()->hide();
        emit runRequested();
        return;
    }
    if (event->key() == Qt::Key_Space && event->modifiers() & Qt::ControlModifier) {
        offer(true);
        return;
    }
    if (event->key() == Qt::Key_Tab && !event->modifiers() && textCursor().atBlockEnd() && wordBefore().isEmpty() &&
        document()->isEmpty()) {
        QPlainTextEdit::focusNextPrevChild(true); // in an empty editor Tab moves the focus on
        return;
    }
    QPlainTextEdit::keyPressEvent(event);
    if (!event->text().isEmpty() && isNamePart(event->text().back()))
        offer(false);
    else if (event->key() != Qt::Key_Shift && event->key() != Qt::Key_Control)
        completer_->popup()->hide();
}

void SqlEditor::offer(bool always) {
    const QString word = wordBefore();
    if (!always && word.size() < kOfferAfter) {
        completer_->popup()->hide();
        return;
    }
    completer_->setCompletionPrefix(word);
    const bool nothingToAdd =
        completer_->completionCount() == 0 ||
        (completer_->completionCount() == 1 && completer_->currentCompletion().compare(word, Qt::CaseInsensitive) == 0);
    if (nothingToAdd) {
        completer_->popup()->hide();
        return;
    }
    completer_->popup()->setCurrentIndex(completer_->completionModel()->index(0, 0));
    QRect place = cursorRect();
    place.setWidth(completer_->popup()->sizeHintForColumn(0) +
                   completer_->popup()->verticalScrollBar()->sizeHint().width() + 8);
    completer_->complete(place);
}

void SqlEditor::complete(const QString& name) {
    QTextCursor cursor = textCursor();
    cursor.movePosition(QTextCursor::PreviousCharacter, QTextCursor::KeepAnchor, int(wordBefore().size()));
    cursor.insertText(name);
    setTextCursor(cursor);
}

} // namespace kvscope::ui
