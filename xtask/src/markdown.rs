//! Markdown of documents: tables and paths in links.

/// Returns a table. Each column is as wide as its widest cell, at least three characters.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.len())).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, &width)| format!(" {cell:<width$} |"));
        format!("|{}\n", padded.collect::<String>())
    };
    let rule: String = widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))).collect();
    let body: String = rows.iter().map(|row| line(row.iter().map(String::as_str).collect())).collect();
    format!("{}|{rule}\n{body}", line(head.to_vec()))
}

/// Returns the path of a link in a document of a directory. Both paths are relative to the same root.
pub(crate) fn joined(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_table_has_columns_of_one_width() {
        let table = super::table(&["a", "longer"], &[vec!["wide cell".to_owned(), "1".to_owned()]]);
        assert_eq!(table, "| a         | longer |\n|-----------|--------|\n| wide cell | 1      |\n");
    }
}
