// Package e2e holds the tests of Hawser as a whole: the built programs, real
// processes, real certificates and kubectl, and the rules of the house.
package e2e
