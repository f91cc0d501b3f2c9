// Package strangers bounds what clients can cause before they are authenticated: how many
// connections they hold (Pending), how many of them one address has (SourceCounts), and how
// many log lines they cause (LogLimiter).
//
// Its mental model: one address can never keep others out, but it may use every place that
// nobody else wants.
package strangers
