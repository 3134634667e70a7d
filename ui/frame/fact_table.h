// A table of facts about what is selected: names, values, and links to what the names mean.
#pragma once

#include <QHash>
#include <QString>
#include <QWidget>

class QGridLayout;
class QLabel;

namespace kvscope::ui {

/// Rows "name  value"; a name with a definition is a link to it.
class FactTable final : public QWidget {
    Q_OBJECT
public:
    explicit FactTable(QWidget* parent = nullptr);
    /// Adds or changes a row. An empty value hides it.
    void set(const QString& name, const QString& value, const char* definition = nullptr);
    QString value(const QString& name) const;
    /// Changes the whole table at once. Rows that are set while the Update exists are shown, and when it ends all
    /// others are hidden. So the rows that stay are not laid out anew.
    class Update {
    public:
        explicit Update(FactTable* table);
        ~Update();
        Update(const Update&) = delete;
        Update& operator=(const Update&) = delete;

    private:
        FactTable* table_;
    };

signals:
    void definitionRequested(const QString& id);

protected:
    void changeEvent(QEvent* event) override;

private:
    struct Row {
        QLabel *name, *value;
        QString definition; // id; empty: none
        bool set = false;   // in the present Update
    };
    static void writeName(const QString& name, const Row& row);
    QGridLayout* grid_;
    QHash<QString, Row> rows_;
};

} // namespace kvscope::ui
