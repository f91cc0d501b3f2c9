//go:build !race

package e2e

// raceFlag makes the programs under test watch for races when the tests do.
const raceFlag = ""
