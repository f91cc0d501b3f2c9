// What tests see of the package, which import what it has to be initialized before.

package language

// Loaded is whether a catalogue has been loaded.
func Loaded() bool { return loaded }
