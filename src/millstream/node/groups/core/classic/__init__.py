"""Classic groups: members join, one of them assigns, all fetch their share. The clients know what they assign.

`classic_groups` and `joining` have the requests, `rebalance` the machinery between them, `classic_group` the state,
`group_state` the table of states.
"""
