// Package loop is what controllers are made of: a group of goroutines that end
// together, and a work queue whose workers belong to such a group.
//
// A controller watches, puts keys into a Queue and lets the workers make the
// world match the object at each key. Everything runs inside Together, which
// returns once every goroutine it started has. A panic in one of them becomes
// that call's error, so a broken controller ends by itself and whoever runs it
// can start it afresh, while its neighbours in the process go on. A panic over one
// key of a Queue is that key's failure, which is retried like any other; one in a
// handler of events costs that event. Both are logged with their stack and counted.
//
// What controllers have in common besides is here too: the defaults of a Config,
// metrics that are registered again, watches that end together.
//
// It is not a framework: there is no registration and no base type. What it
// does not cover (a ticker, a watch) is an ordinary func handed to Together.
package loop
