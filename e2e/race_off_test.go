//go:build !race

package e2e

// raceFlag makes programs watch for races when the tests do; racedTests says of which tests.
const raceFlag = ""
