package lab_test

import (
	"fmt"

	"github.com/hawser-project/hawser/cmd/lab"
)

// A script is the same each time: the seed decides every chance in it.
func ExampleScript_Plan() {
	script, err := lab.ParseScript(`
		seed 7
		at 2s cut node-1 for 5s; at 10s rebind node-2
		at 20s cuts 3 between 100ms..200ms kinds rst,rebind for 50ms on node-1`)
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := script.Plan([]string{"node-1", "node-2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, event := range plan[:3] {
		fmt.Println(event)
	}
	fmt.Println(len(plan) > 5)
	// Output:
	// 2s node-1 cut both
	// 7s node-1 end of cut both
	// 10s node-2 rebind
	// true
}
