// Package strangers bounds what those can cause who have not yet proved who they are:
// how many connections they hold (Pending), how many of them one address has (Census), and
// how many lines of a log they fill (Sparse).
//
// Its mental model: one address alone keeps nobody out, and may have every place that
// nobody else wants.
package strangers
